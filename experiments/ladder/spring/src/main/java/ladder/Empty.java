package ladder;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** The empty endpoint on Spring Boot: Tomcat, Spring MVC, one constant answer. */
@SpringBootApplication
@RestController
public class Empty {

    public static void main(String[] args) {
        SpringApplication.run(Empty.class, args);
    }

    @GetMapping(value = "/probe/empty", produces = "text/plain")
    public String empty() {
        return "hello world!!";
    }
}
